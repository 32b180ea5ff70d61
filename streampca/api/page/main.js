// The page: polls the sidecar every two seconds and shows what is new.
//
// Data flow one way: the sidecar's answers → `state` → the document. Only the user's input is read from the document:
// the slider, the two components of the scatter plot, the shape of pictures, the vector.

import * as api from "./api.js";
import * as charts from "./charts.js";
import { element, make, setText } from "./dom.js";
import * as format from "./format.js";
import { fill, shapeOf } from "./heatmap.js";
import { TryVector } from "./try_vector.js";
import * as unusual from "./unusual.js";
import * as workers from "./workers.js";

const POLL_INTERVAL_MS = 2000;
const MAX_POINTS = 5000; // in the charts over time; a page may be open for weeks
const LATEST = 20; // recent vectors drawn in colour

const state = {
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
  loss: charts.timeline("loss-chart", "Loss", "accent", selectedTime),
  explained: charts.timeline("explained-chart", "Explained", "good", selectedTime),
  scree: charts.scree("scree-chart"),
  recent: charts.scatter("recent-chart"),
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
  if (history.models.length || history.version !== newest()) state.versions = await api.versions();
  if (newest() !== null && state.versions.length && state.versions.at(-1) < newest()) {
    state.points = []; // the store was replaced
    state.follow = true;
    return update(await api.history(null));
  }
  state.points = [...state.points, ...history.models].slice(-MAX_POINTS);
  element("waiting").hidden = newest() !== null;
  if (newest() === null) {
    setText("waiting-why", state.reasons.join("; "));
  } else if (state.shown === null || (state.follow && state.shown.about.version !== newest())) {
    await select(newest());
  } else if (history.models.length) {
    drawTime();
  }
  workers.show(state.reports, state.shown?.about.positions ?? {}, now());
  element("workers-section").hidden = false;
  if (state.shown) await refreshRecent();
}

let requested = null; // the version requested last: answers for others are dropped

/** Show a version. */
async function select(version) {
  requested = version;
  const [about, components] = await Promise.all([api.about(version), api.components(version)]);
  if (requested !== version) return;
  const first = state.shown === null;
  state.shown = { about, components };
  for (const id of ["model", "try"]) element(id).hidden = false;
  drawVersion();
  if (!first) tryVector.refresh();
}

// ---- showing

function showStatus() {
  const { shown, reasons } = state;
  if (!shown) return setStatus("waiting", reasons.join("; ") || "No model yet");
  if (reasons.length) return setStatus("trouble", `Not ready: ${reasons.join("; ")}`);
  const { version, published_at: at } = state.points.at(-1);
  setText("age", `${format.duration(now() - at)} ago`);
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
  drawTime();
  drawScree(about.explained_variance_ratio);
  showErrors(about);
  offerComponents(about.components);
  drawComponents();
}

function drawTime() {
  const times = state.points.map((point) => point.published_at);
  plots.loss.show([times, state.points.map((point) => point.loss_ewma)]);
  plots.explained.show([times, state.points.map((point) => point.explained_variance_ratio)]);
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
  const { coordinates } = recent;
  unusual.show(recent);
  const points = coordinates.map(([a, b], i) => ({ a, b, kind: i < coordinates.length - LATEST ? 0 : 1 }));
  if (state.own) points.push({ a: state.own[x - 1], b: state.own[y - 1], kind: 2 });
  points.sort((p, q) => p.a - q.a);
  const ofKind = (kind) => points.map((point) => (point.kind === kind ? point.b : null));
  plots.recent.show([points.map((point) => point.a), ofKind(0), ofKind(1), ofKind(2)]);
  element("recent-empty").hidden = points.length > 0;
}

// ---- user input

/** An event handler that shows errors as `poll` does. */
const handler = (act) => () => Promise.resolve(act()).catch(showError);

function listen() {
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
    history.replaceState(null, "", entered ? `#shape=${encodeURIComponent(entered)}` : location.pathname);
    drawComponents();
    return tryVector.refresh();
  }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", handler(() => state.shown && drawComponents()));
}

async function run() {
  if (!document.hidden) await poll();
  setTimeout(run, POLL_INTERVAL_MS);
}

listen();
run();
