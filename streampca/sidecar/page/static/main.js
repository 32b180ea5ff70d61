// The page: polls the sidecar every two seconds and shows what is new.
//
// Data flow one way: the sidecar's answers → `state` → the document. Only the user's input is read from the document:
// the slider, the two components of the scatter plot, the shape of pictures, the vector.

import * as api from "./api.js";
import * as charts from "./charts.js";
import { colour, element, make, setText } from "./dom.js";
import * as format from "./format.js";
import { fill, shapeOf } from "./heatmap.js";
import { TryVector } from "./try_vector.js";
import * as unusual from "./unusual.js";
import * as workers from "./workers.js";

const POLL_INTERVAL_MS = 2000;
const MAX_POINTS = 5000; // in the charts over time; a page may be open for weeks
const MAX_PARTITIONS = 12; // with lines of their own
const LATEST = 20; // recent vectors drawn in colour

const state = {
  topics: [], // in the store, the served one first
  partitions: [], // those with lines of their own
  points: [], // metrics of versions, in ascending order; also of versions that were removed meanwhile
  versions: [], // all in the store
  shown: null, // {about, components} of the selected version
  follow: true,
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
  loss: timeline("loss-chart", charts.SHARE, "Loss", "accent"),
  explained: timeline("explained-chart", charts.SHARE, "Explained", "good"),
  rate: timeline("rate-chart", charts.RATE, "Messages", "second"),
  lag: timeline("lag-chart", charts.SPAN, "Lag", "accent"),
  partitions: charts.timeline("losses-chart", charts.SHARE, () => state.partitions.map((p, i) => [`Partition ${p}`, charts.tone(i)]), selectedTime),
  scree: charts.scree("scree-chart"),
  recent: new charts.Scatter("recent-chart"),
};

function timeline(id, unit, label, tone) {
  return charts.timeline(id, unit, () => [[label, colour(tone)]], selectedTime);
}

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
    state.follow = true;
    return update(await api.history(null));
  }
  state.points = [...state.points, ...history.models].slice(-MAX_POINTS);
  element("waiting").hidden = newest() !== null;
  if (newest() === null) {
    setText("waiting-why", api.otherTopic() ? `${api.otherTopic()} has no model in this store` : state.reasons.join("; "));
  } else if (state.shown === null || (state.follow && state.shown.about.version !== newest())) {
    await select(newest());
  } else if (history.models.length) {
    drawTime();
  }
  workers.show(state.reports, state.shown?.about.positions ?? {}, now());
  element("workers-section").hidden = false;
  if (state.shown && !api.otherTopic()) await refreshRecent();
}

let requested = null; // the version requested last: answers for others are dropped

/** Show a version. */
async function select(version) {
  requested = version;
  const [about, components] = await Promise.all([api.about(version), api.otherTopic() ? [] : api.components(version)]);
  if (requested !== version) return;
  const first = state.shown === null;
  state.shown = { about, components };
  element("model").hidden = false;
  drawVersion();
  if (api.otherTopic()) return;
  element("try").hidden = false;
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
  const { points } = state;
  const times = points.map((point) => point.published_at);
  plots.loss.show([times, points.map((point) => point.loss_ewma)]);
  plots.explained.show([times, points.map((point) => point.explained_variance_ratio)]);
  plots.rate.show([times, points.map((point, i) => rate(points[i - 1], point))]);
  plots.lag.show([times, points.map(lag)]);
  drawPartitions(times);
  const slider = element("slider");
  const at = state.versions.indexOf(state.shown.about.version);
  slider.max = Math.max(state.versions.length - 1, 0);
  slider.value = Math.max(at, 0);
  const published = format.time(state.shown.about.published_at);
  const position = at < 0 ? "no longer in the store" : `${at + 1} of ${state.versions.length}`;
  setText("slider-value", `${format.count(state.shown.about.version)} (${position}), published ${published}`);
  slider.setAttribute("aria-valuetext", `version ${format.count(state.shown.about.version)}, published ${published}`);
  element("follow").setAttribute("aria-pressed", state.follow);
}

/** Messages per second between two versions. */
function rate(before, { version, published_at: at }) {
  return before && at > before.published_at ? (version - before.version) / (at - before.published_at) : null;
}

/** Seconds from the newest record in a version to its publication. */
const lag = ({ published_at: at, last_timestamp_ms: last }) => (last < 0 ? null : at - last / 1000);

/** The loss of each partition or, if they are many, of those where it is the greatest now. */
function drawPartitions(times) {
  const newest = Object.entries(state.points.at(-1).partition_losses).sort(([, a], [, b]) => b - a);
  const shown = newest.slice(0, MAX_PARTITIONS).map(([p]) => p).sort((p, q) => p - q);
  element("losses").hidden = newest.length < 2;
  if (newest.length < 2) return;
  setText("losses-which", shown.length < newest.length ? `The ${shown.length} partitions where it is the greatest now.` : "");
  const same = `${shown}` === `${state.partitions}`;
  state.partitions = shown;
  if (!same) plots.partitions.rebuild();
  plots.partitions.show([times, ...shown.map((p) => state.points.map(({ partition_losses: losses }) => losses[p] ?? null))]);
}

function drawScree(shares) {
  let sum = 0;
  plots.scree.show([shares.map((_, i) => i + 1), shares, shares.map((share) => (sum += share))]);
}

/** Both errors are null with fewer than four partitions. */
function showErrors({ subspace_error: subspace, axis_errors: axes, components }) {
  element("errors").hidden = subspace === null;
  if (subspace === null) return;
  setText("errors", `Sampling error, estimated: ${format.short(subspace)} of ${components} for the plane of all ` +
    `components; ${format.angle(Math.min(...axes))} to ${format.angle(Math.max(...axes))} for the axes.`);
}

function drawComponents() {
  const { about, components } = state.shown;
  const error = (i) => (about.axis_errors === null ? "" : ` · ±\u00a0${format.angle(about.axis_errors[i])}`);
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
    select.value = first;
  }
}

async function refreshRecent() {
  const [x, y] = ["recent-x", "recent-y"].map((id) => Number(element(id).value));
  const recent = await api.recent(state.shown.about.version, x, y);
  const { coordinates, at, residual, p } = recent;
  unusual.show(recent);
  const points = coordinates.map(([a, b], i) => ({
    index: i + 1, at: at[i], a, b, residual: residual[i], p: p && p[i], kind: i < coordinates.length - LATEST ? 0 : 1,
  }));
  if (state.own) points.push({ a: state.own[x - 1], b: state.own[y - 1], kind: 2 });
  plots.recent.showPoints(points, [x, y]);
  element("recent-empty").hidden = points.length > 0;
}

/** A choice among the topics of the store, if there are several. */
function offerTopics(topics) {
  if (api.otherTopic() === topics[0]) location.replace(location.pathname);
  state.topics = topics;
  const select = element("topics");
  select.replaceChildren(...topics.map((name) => make("option", { value: name }, name)));
  select.value = api.otherTopic() ?? topics[0];
  select.hidden = topics.length < 2;
  element("topic").hidden = topics.length > 1;
}

// ---- user input

/** An event handler that shows errors as `poll` does. */
const handler = (act) => () => Promise.resolve(act()).catch(showError);

function listen() {
  for (const section of document.querySelectorAll(".served")) section.hidden ||= api.otherTopic() !== null;
  element("topics").addEventListener("change", ({ target }) => {
    location.assign(target.value === state.topics[0] ? location.pathname : `?topic=${encodeURIComponent(target.value)}`);
  });
  for (const link of document.querySelectorAll("a[data-file]")) link.addEventListener("click", (event) => {
    if (!api.needsToken()) return;
    event.preventDefault();
    api.download(link.href, link.dataset.file).catch(showError);
  });
  element("slider").addEventListener("input", handler(() => {
    const version = state.versions[Number(element("slider").value)];
    state.follow = version === newest();
    return select(version).then(showStatus);
  }));
  element("follow").addEventListener("click", handler(() => {
    state.follow = !state.follow;
    element("follow").setAttribute("aria-pressed", state.follow);
    return state.follow ? select(newest()).then(showStatus) : undefined;
  }));
  for (const id of ["recent-x", "recent-y"]) element(id).addEventListener("change", handler(refreshRecent));
  element("shape").value = new URLSearchParams(location.hash.slice(1)).get("shape") ?? "";
  element("shape").addEventListener("change", handler(() => {
    const entered = element("shape").value.trim();
    history.replaceState(null, "", entered ? `#shape=${encodeURIComponent(entered)}` : location.pathname + location.search);
    drawComponents();
    return tryVector.refresh();
  }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", handler(() => state.shown && !api.otherTopic() && drawComponents()));
}

async function run() {
  if (!document.hidden) await poll();
  setTimeout(run, POLL_INTERVAL_MS);
}

listen();
run();
