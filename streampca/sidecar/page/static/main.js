// The page: polls the sidecar every two seconds and shows what is new.
//
// Data flow one way: the sidecar's answers → `state`, and the user's input → the address (view.js); both → the document.

import * as api from "./api.js";
import * as components from "./components.js";
import { element, make, setStatus, setText, showSlider } from "./dom.js";
import { setOrigin } from "./files.js";
import * as format from "./format.js";
import { marksOf } from "./marks.js";
import { Scatter } from "./scatter.js";
import * as timeCharts from "./time_charts.js";
import { TryVector } from "./try_vector.js";
import * as unusual from "./unusual.js";
import * as verdict from "./verdict.js";
import * as view from "./view.js";
import * as workers from "./workers.js";

const POLL_INTERVAL_MS = 2000;
const MAX_POINTS = 5000; // in the charts over time; a page may be open for weeks

const state = {
  topics: [], // in the store, the served one first
  points: [], // metrics of versions, in ascending order; also of versions that were removed meanwhile
  versions: [], // all in the store
  pins: {}, // versions by name
  drifts: {}, // how far the newest version has moved from each pinned one, by name
  shown: null, // {about, components} of the selected version
  other: null, // the same of the version that it is compared with, and the angles between both
  own: null, // coordinates of the user's vector
  clock: 0, // the sidecar's time minus the browser's, in seconds
  answeredAt: null, // when the sidecar last answered
  reasons: [], // why the sidecar is not ready
  unreadable: [], // sentences about versions that it cannot read
  reports: [],
};

const now = () => Date.now() / 1000 + state.clock;
const newest = () => state.points.at(-1)?.version ?? null;

const scatter = new Scatter("recent-chart");
const shape = () => components.shape(state.shown.about.dimensions);
const tryVector = new TryVector(() => ({ about: state.shown.about, shape: shape() }), (coordinates) => {
  state.own = coordinates;
  refreshRecent().catch(showError);
});

// ---- polling

async function poll() {
  try {
    const [history, { workers: reports }] = await Promise.all([api.history(newest()), api.workers()]);
    state.clock = history.now - Date.now() / 1000;
    state.answeredAt = now();
    state.reasons = history.not_ready;
    state.unreadable = history.unreadable;
    state.reports = reports;
    state.pins = history.pins;
    state.drifts = history.drifts;
    await update(history);
    await refresh(false);
    element("content").parentElement.classList.remove("unreachable");
  } catch (error) {
    showError(error);
  }
}

async function update(history) {
  if (api.otherTopic()) state.versions = [...state.points, ...history.models].map(({ version }) => version);
  else if (history.models.length || history.version !== newest()) state.versions = await api.versions();
  if (newest() !== null && state.versions.length && state.versions.at(-1) < newest()) { // the store was replaced
    [history, state.versions] = [await api.history(null), await api.versions()];
    [state.points, state.shown, state.other, requested] = [[], null, null, ""]; // what is on its way is dropped
  }
  if (history.topics) offerTopics(history.topics);
  state.points = [...state.points, ...history.models].slice(-MAX_POINTS);
}

/** The version that the address names, if it is loaded or in the store; else null. */
function named(parameter) {
  const loaded = [state.shown, state.other].map((model) => model?.about.version);
  return [...loaded, ...state.versions].find((version) => `${version}` === view.get(parameter)) ?? null;
}

let requested = ""; // the versions requested last: answers for others are dropped

/** Load the versions that the address names, the newest if none, unless they are shown. Returns whether others are shown now. */
async function load() {
  const loaded = [state.shown, state.other];
  const versions = [named("version") ?? newest(), named("with")];
  requested = `${versions}`;
  if (requested === `${loaded.map((model) => model?.about.version)}`) return false;
  const models = await Promise.all(versions.map((version) => (
    version === null ? null : loaded.find((model) => model?.about.version === version) ?? api.model(version)
  )));
  const [shown, other] = models;
  const angles = other && !api.otherTopic() ? await api.angles(...versions) : null;
  if (requested !== `${versions}`) return false;
  [state.shown, state.other] = [shown, other && { ...other, angles }];
  return true;
}

/** Show the state, as the address says. With `changed`, the address is another; else only new answers are shown. */
async function refresh(changed = true) {
  const drawAll = await load() || changed;
  const { shown } = state;
  element("waiting").hidden = newest() !== null;
  setText("waiting-why", api.otherTopic() ? `${api.otherTopic()} has no model in this store` : state.reasons.join("; "));
  element("model").hidden = shown === null;
  openTab();
  workers.show(state.reports, shown?.about.positions ?? {}, now());
  showStatus();
  if (!shown) return;
  verdict.show(shown.about.version === newest() ? state.drifts : {});
  if (drawAll) drawVersion();
  drawTime();
  if (!api.otherTopic()) await Promise.all([refreshRecent(), drawAll && tryVector.refresh()]);
}

/** The tab in the address; that of workers while there is no model. */
function openTab() {
  const tab = state.shown ? document.querySelector("[name=tab]:checked")?.value || "time" : "workers";
  for (const panel of document.querySelectorAll(".panel")) panel.hidden = panel.id !== `${tab}-panel`;
}

// ---- showing

function showStatus() {
  const { shown, reasons } = state;
  const other = api.otherTopic();
  if (!shown) return setStatus("waiting", (!other && reasons.join("; ")) || "No model yet");
  setText("age", `${format.duration(now() - shown.about.published_at)} ago`);
  if (!other && reasons.length) return setStatus("trouble", `Not ready: ${reasons.join("; ")}`);
  const { version } = state.points.at(-1);
  if (other && shown.about.version === version)
    return setStatus("serving", `Newest version ${format.count(version)}; this sidecar serves ${state.topics[0]}`);
  if (shown.about.version === version)
    return setStatus("serving", [`Serving version ${format.count(version)}`, ...state.unreadable].join("; "));
  setStatus("past", `Showing the earlier version ${format.count(shown.about.version)}; the newest is ${format.count(version)}`);
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
  setOrigin(about);
  setText("topic", about.topic);
  document.title = about.topic ? `${about.topic} – streampca` : "streampca";
  setText("version", format.count(about.version));
  setText("loss", format.percent(about.loss_ewma));
  setText("explained", format.percent(format.sum(about.explained_variance_ratio)));
  setText("shape-of-model", `${format.count(about.dimensions)} → ${format.count(about.components)}`);
  setText("rejected", format.count(about.rejected));
  element("model-link").href = api.aboutPath(about.version);
  components.show(state.shown, state.other, shape());
  offerComponents(about.components);
}

function drawTime() {
  const { about } = state.shown;
  timeCharts.show(state.points, about.published_at, marksOf(state.points, state.pins, state.reports), now());
  showSlider("slider", about, state.versions);
  showSlider("other", state.other?.about, state.versions);
  element("follow").setAttribute("aria-pressed", `${about.version}` !== view.get("version"));
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
  const colours = element("colour");
  colours.querySelector("[value=p]").disabled = !p; // there are no past scores
  colours.value = p ? view.get("colour") ?? "p" : "age";
  scatter.showPoints(points, [x, y], colours.value, now());
  element("recent-empty").hidden = points.length > 0;
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

function openTopic(topic) {
  view.set({ topic, version: null, with: null });
  location.reload();
}

// ---- user input

function listen() {
  for (const part of document.querySelectorAll(".served")) part.hidden ||= api.otherTopic() !== null;
  element("topics").addEventListener("change", ({ target }) => openTopic(target.value === state.topics[0] ? null : target.value));
  for (const link of document.querySelectorAll("a[data-file]")) link.addEventListener("click", (event) => {
    if (!api.needsToken()) return;
    event.preventDefault();
    api.download(link.href, link.dataset.file).catch(showError);
  });
  const version = ({ target }) => state.versions[Number(target.value)];
  element("slider").addEventListener("input", (event) => view.set({ version: version(event) === newest() ? null : version(event) }));
  element("other").addEventListener("input", (event) => view.set({ with: version(event) }));
  element("follow").addEventListener("click", ({ target }) => {
    view.set({ version: target.getAttribute("aria-pressed") === "true" ? state.shown.about.version : null });
  });
  const redraw = () => refresh().catch(showError);
  addEventListener("view", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

async function run() {
  if (!document.hidden) await poll();
  setTimeout(run, POLL_INTERVAL_MS);
}

listen();
run();
