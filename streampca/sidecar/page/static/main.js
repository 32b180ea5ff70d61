// The page: polls the sidecar every two seconds and shows what is new.
//
// Data flow one way: the sidecar's answers → `state` → the document. Only the user's input is read from the document, and kept in
// the address: the slider, the two components of the scatter plot, the shape of pictures.

import * as api from "./api.js";
import * as charts from "./charts.js";
import * as compare from "./compare.js";
import { element, make, setText } from "./dom.js";
import * as format from "./format.js";
import { fill, shapeOf } from "./heatmap.js";
import { Scatter } from "./scatter.js";
import * as tabs from "./tabs.js";
import * as timeCharts from "./time_charts.js";
import { TryVector } from "./try_vector.js";
import * as unusual from "./unusual.js";
import * as versionSlider from "./version_slider.js";
import * as view from "./view.js";
import * as workers from "./workers.js";

const POLL_INTERVAL_MS = 2000;
const MAX_POINTS = 5000; // in the charts over time; a page may be open for weeks

const state = {
  topics: [], // in the store, the served one first
  points: [], // metrics of versions, in ascending order; also of versions that were removed meanwhile
  versions: [], // all in the store
  shown: null, // {about, components} of the selected version
  follow: view.get("version") === null,
  own: null, // coordinates of the user's vector
  clock: 0, // the sidecar's time minus the browser's, in seconds
  answeredAt: null, // when the sidecar last answered
  reasons: [], // why the sidecar is not ready
  reports: [],
};

const now = () => Date.now() / 1000 + state.clock;
const newest = () => state.points.at(-1)?.version ?? null;
const selectedTime = () => state.points.find(({ version }) => version === state.shown?.about.version)?.published_at ?? null;

const plots = {
  scree: charts.bars("scree-chart", { x: charts.COMPONENTS, bar: "share", line: "cumulative", cumulative: true }),
  recent: new Scatter("recent-chart"),
};

const tryVector = new TryVector(selected, (coordinates) => { state.own = coordinates; refreshRecent(); });

function selected() {
  return { about: state.shown.about, shape: shape() };
}

// ---- polling

async function poll() {
  try {
    const [history, { workers: reports }] = await Promise.all([api.history(newest()), api.workers()]);
    state.clock = history.now - Date.now() / 1000;
    state.reasons = history.not_ready;
    state.reports = reports;
    await update(history);
    state.answeredAt = now();
    element("content").parentElement.classList.remove("unreachable");
    showStatus();
  } catch (error) {
    showError(error);
  }
}

async function update(history) {
  if (history.topics) offerTopics(history.topics);
  if (api.otherTopic()) state.versions = [...state.points, ...history.models].map(({ version }) => version);
  else if (history.models.length || history.version !== newest()) state.versions = await api.versions();
  if (newest() !== null && state.versions.length && state.versions.at(-1) < newest()) {
    state.points = []; // the store was replaced
    setFollow(true);
    return update(await api.history(null));
  }
  state.points = [...state.points, ...history.models].slice(-MAX_POINTS);
  element("waiting").hidden = newest() !== null;
  if (newest() === null) {
    setText("waiting-why", api.otherTopic() ? `${api.otherTopic()} has no model in this store` : state.reasons.join("; "));
  } else if (state.shown === null) {
    await selectFirst();
  } else if (state.follow && state.shown.about.version !== newest()) {
    await select(newest());
  } else {
    drawTime();
  }
  workers.show(state.reports, state.shown?.about.positions ?? {}, now());
  tabs.open(state.shown ? view.get("tab") : "workers");
  if (!state.shown || api.otherTopic()) return;
  await Promise.all([refreshRecent(), refreshCompare()]);
}

/** Show the version in the address; if there is none in the store, the newest. */
function selectFirst() {
  const version = Number(view.get("version"));
  if (!state.versions.includes(version)) setFollow(true);
  return select(state.follow ? newest() : version);
}

function setFollow(follow, version) {
  state.follow = follow;
  view.set("version", follow ? null : version);
  element("follow").setAttribute("aria-pressed", follow);
}

let requested = null; // the version requested last: answers for others are dropped

/** Show a version. */
async function select(version) {
  requested = version;
  const model = await api.model(version);
  if (requested !== version) return;
  const first = state.shown === null;
  state.shown = model;
  element("model").hidden = false;
  drawVersion();
  if (api.otherTopic()) return;
  drawComponents();
  if (!first) tryVector.refresh();
}

// ---- showing

function showStatus() {
  const { shown, reasons } = state;
  const other = api.otherTopic();
  if (!shown) return setStatus("waiting", (!other && reasons.join("; ")) || "No model yet");
  if (!other && reasons.length) return setStatus("trouble", `Not ready: ${reasons.join("; ")}`);
  const { version, published_at: at } = state.points.at(-1);
  setText("age", `${format.duration(now() - at)} ago`);
  if (other && shown.about.version === version)
    return setStatus("serving", `Newest version ${format.count(version)}; this sidecar serves ${state.topics[0]}`);
  if (shown.about.version === version) return setStatus("serving", `Serving version ${format.count(version)}`);
  setStatus("past", `Showing the earlier version ${format.count(shown.about.version)}; the newest is ${format.count(version)}`);
}

function setStatus(kind, text) {
  element("status").dataset.state = kind;
  setText("status", text);
}

function showError(error) {
  if (error instanceof api.RequestError) return setStatus("trouble", error.message);
  if (!(error instanceof api.Unreachable)) console.error(error);
  element("content").parentElement.classList.add("unreachable");
  const since = state.answeredAt === null ? "does not respond" : `has not responded since ${format.time(state.answeredAt)}`;
  setStatus("unreachable", `The sidecar ${since}; retrying`);
}

function drawVersion() {
  const { about } = state.shown;
  setText("topic", about.topic);
  document.title = about.topic ? `${about.topic} – streampca` : "streampca";
  setText("version", format.count(about.version));
  setText("loss", format.percent(about.loss_ewma));
  setText("explained", format.percent(about.explained_variance_ratio.reduce((sum, share) => sum + share, 0)));
  setText("shape-of-model", `${format.count(about.dimensions)} → ${format.count(about.components)}`);
  setText("rejected", format.count(about.rejected));
  element("model-link").href = api.aboutPath(about.version);
  drawTime();
  drawScree(about.explained_variance_ratio);
  showErrors(about);
  offerComponents(about.components);
}

function drawTime() {
  timeCharts.show(state.points, selectedTime(), now());
  versionSlider.show("slider", state.shown.about, state.versions);
}

function drawScree(shares) {
  let sum = 0;
  plots.scree.show([shares.map((_, i) => i + 1), shares, shares.map((share) => (sum += share))]);
}

const errorOf = (radians) => format.angle(format.degrees(radians));

/** Both errors are null with fewer than four partitions. */
function showErrors({ subspace_error: subspace, axis_errors: axes, components }) {
  element("errors").hidden = subspace === null;
  if (subspace === null) return;
  setText("errors", `Sampling error, estimated: ${format.short(subspace)} of ${components} for the plane of all ` +
    `components; ${errorOf(Math.min(...axes))} to ${errorOf(Math.max(...axes))} for the axes.`);
}

function drawComponents() {
  refreshCompare().catch(showError);
  const { about, components } = state.shown;
  const error = (i) => (about.axis_errors === null ? "" : ` · ±\u00a0${errorOf(about.axis_errors[i])}`);
  fill(element("components"), shape(), components.map((vector, i) => ({
    vector,
    caption: `${i + 1} · ${format.percent(about.explained_variance_ratio[i])}${error(i)}`,
    label: `Component ${i + 1}, which explains ${format.percent(about.explained_variance_ratio[i])}`,
  })));
}

/** The shape that the user entered; null if there is none or it does not fit. */
function shape() {
  const message = element("shape-message");
  try {
    const entered = shapeOf(element("shape").value, state.shown.about.dimensions);
    message.textContent = "";
    return entered;
  } catch (error) {
    message.textContent = error.message;
    message.classList.add("bad");
    return null;
  }
}

function offerComponents(k) {
  for (const [id, first] of [["recent-x", 1], ["recent-y", Math.min(2, k)]]) {
    const select = element(id);
    if (select.options.length === k) continue;
    select.replaceChildren(...Array.from({ length: k }, (_, i) => make("option", { value: i + 1 }, `${i + 1}`)));
    select.value = view.get(id) ?? first;
  }
}

async function refreshRecent() {
  const [x, y] = ["recent-x", "recent-y"].map((id) => Number(element(id).value));
  const recent = await api.recent(state.shown.about.version, x, y);
  const { coordinates, at, residual, p } = recent;
  unusual.show(recent);
  const points = coordinates.map(([a, b], i) => ({ index: i + 1, at: at[i], a, b, residual: residual[i], p: p && p[i] }));
  if (state.own) points.push({ a: state.own[x - 1], b: state.own[y - 1] });
  element("colour").querySelector("[value=p]").disabled = !p; // there are no past scores
  plots.recent.showPoints(points, [x, y], p ? element("colour").value : "age", now());
  element("recent-empty").hidden = points.length > 0;
}

/** The comparison, if it can be seen. */
async function refreshCompare() {
  if (tabs.isOpen("compare")) await compare.show(state.shown, state.versions, shape());
}

/** A choice among the topics of the store, if there are several. */
function offerTopics(topics) {
  if (api.otherTopic() === topics[0]) openTopic(null);
  state.topics = topics;
  const select = element("topics");
  select.replaceChildren(...topics.map((name) => make("option", { value: name }, name)));
  select.value = api.otherTopic() ?? topics[0];
  select.hidden = topics.length < 2;
  element("topic").hidden = topics.length > 1;
}

function openTopic(name) {
  for (const version of ["version", "with"]) view.set(version, null);
  view.set("topic", name);
  location.reload();
}

// ---- user input

/** An event handler that shows errors as `poll` does. */
const handler = (act) => () => Promise.resolve(act()).catch(showError);

/** Act when an input has changed, and keep its value in the address. */
function keep(id, act) {
  element(id).value = view.get(id) ?? element(id).value;
  element(id).addEventListener("change", handler(() => {
    view.set(id, element(id).value.trim());
    return act();
  }));
}

function listen() {
  for (const part of document.querySelectorAll(".served")) part.hidden ||= api.otherTopic() !== null;
  element("topics").addEventListener("change", ({ target }) => openTopic(target.value === state.topics[0] ? null : target.value));
  for (const link of document.querySelectorAll("a[data-file]")) link.addEventListener("click", (event) => {
    if (!api.needsToken()) return;
    event.preventDefault();
    api.download(link.href, link.dataset.file).catch(showError);
  });
  element("slider").addEventListener("input", handler(() => {
    const version = state.versions[Number(element("slider").value)];
    setFollow(version === newest(), version);
    return select(version).then(showStatus);
  }));
  element("follow").addEventListener("click", handler(() => {
    setFollow(!state.follow, state.shown.about.version);
    return state.follow ? select(newest()).then(showStatus) : undefined;
  }));
  element("other").addEventListener("input", handler(() => {
    view.set("with", state.versions[Number(element("other").value)]);
    return refreshCompare();
  }));
  tabs.listen(handler(refreshCompare));
  for (const id of ["recent-x", "recent-y", "colour"]) keep(id, refreshRecent);
  keep("shape", () => {
    drawComponents();
    return tryVector.refresh();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", handler(() => state.shown && !api.otherTopic() && drawComponents()));
}

async function run() {
  if (!document.hidden) await poll();
  setTimeout(run, POLL_INTERVAL_MS);
}

listen();
run();
