// The page: asks the sidecar every two seconds what is new, and shows it.
//
// One thing flows one way: what the sidecar says → `page` → the document. Nothing is read back from the document but what
// the person has put in: the slider, the two components of the scatter, the shape of pictures, the vector.

import * as api from "./api.js";
import * as charts from "./charts.js";
import { fill, shapeOf } from "./heat.js";
import { Trial } from "./trial.js";
import * as words from "./words.js";
import * as workers from "./workers.js";

const { element, say } = words;

const EVERY_MS = 2000;
const MOST_POINTS = 5000; // of the plots over time; a page may be open for weeks
const LATEST = 20; // probes that are drawn in colour

const page = {
  points: [], // figures of versions, by rising version, also of those removed since we saw them
  versions: [], // that can be asked for
  shown: null, // {about, components} of the version that is looked at
  follow: true,
  own: null, // coordinates of the person's own vector
  clock: 0, // the sidecar's time less ours, in seconds
  heard: null, // our time when it last answered
  reasons: [], // why the sidecar is not ready
  reports: [],
};

const now = () => Date.now() / 1000 + page.clock;
const newest = () => page.points.at(-1)?.version ?? null;
const selectedTime = () => page.points.find(({ version }) => version === page.shown?.about.version)?.published_at ?? null;

const plots = {
  loss: charts.timeline("loss-chart", "Loss", "accent", selectedTime),
  explained: charts.timeline("explained-chart", "Explained", "good", selectedTime),
  scree: charts.scree("scree-chart"),
  probes: charts.scatter("probes-chart"),
};
const trial = new Trial(look, (coordinates) => { page.own = coordinates; refreshProbes(); });

function look() {
  return { about: page.shown.about, shape: shape() };
}

// ---- asking

async function tick() {
  try {
    const [history, { workers: reports }] = await Promise.all([api.history(newest()), api.workers()]);
    page.clock = history.now - Date.now() / 1000;
    page.reasons = history.not_ready;
    page.reports = reports;
    await take(history);
    page.heard = now();
    element("content").parentElement.classList.remove("gone");
    tell();
  } catch (error) {
    fail(error);
  }
}

async function take(history) {
  if (history.models.length || history.version !== newest()) page.versions = await api.versions();
  if (newest() !== null && page.versions.length && page.versions.at(-1) < newest()) {
    page.points = []; // another store lies there now
    page.follow = true;
    return take(await api.history(null));
  }
  page.points = [...page.points, ...history.models].slice(-MOST_POINTS);
  element("waiting").hidden = newest() !== null;
  if (newest() === null) {
    say("waiting-why", page.reasons.join("; "));
  } else if (page.shown === null || (page.follow && page.shown.about.version !== newest())) {
    await turnTo(newest());
  } else if (history.models.length) {
    drawTime();
  }
  workers.show(page.reports, page.shown?.about.positions ?? {}, now());
  element("workers-section").hidden = false;
  if (page.shown) await refreshProbes();
}

let asked = null; // the version asked for last: answers that come too late are dropped

/** Look at a version. */
async function turnTo(version) {
  asked = version;
  const [about, components] = await Promise.all([api.about(version), api.components(version)]);
  if (asked !== version) return;
  const first = page.shown === null;
  page.shown = { about, components };
  for (const id of ["model", "try"]) element(id).hidden = false;
  drawVersion();
  if (!first) trial.again();
}

// ---- showing

function tell() {
  const { shown, reasons } = page;
  if (!shown) return status("waiting", reasons.join("; ") || "No model yet");
  if (reasons.length) return status("trouble", `Not ready: ${reasons.join("; ")}`);
  const { version, published_at: at } = page.points.at(-1);
  say("age", `${words.duration(now() - at)} ago`);
  if (shown.about.version === version) return status("serving", `Serving version ${words.count(version)}`);
  status("past", `Looking back at version ${words.count(shown.about.version)}; the newest is ${words.count(version)}`);
}

function status(state, text) {
  element("status").dataset.state = state;
  say("status", text);
}

function fail(error) {
  if (error instanceof api.Refused) return status("trouble", error.message);
  if (!(error instanceof api.Gone)) console.error(error);
  element("content").parentElement.classList.add("gone");
  const said = page.heard === null ? "does not answer" : `has not answered since ${words.time(page.heard)}`;
  status("gone", `The sidecar ${said}; asking on`);
}

function drawVersion() {
  const { about } = page.shown;
  say("topic", about.topic);
  document.title = about.topic ? `${about.topic} – streampca` : "streampca";
  say("version", words.count(about.version));
  say("loss", words.percent(about.loss_ewma));
  say("explained", words.percent(about.explained_variance_ratio.reduce((sum, share) => sum + share, 0)));
  say("shape-of-model", `${words.count(about.dimensions)} → ${words.count(about.components)}`);
  say("rejected", words.count(about.rejected));
  drawTime();
  drawScree(about.explained_variance_ratio);
  offerComponents(about.components);
  drawComponents();
}

function drawTime() {
  const times = page.points.map((point) => point.published_at);
  plots.loss.show([times, page.points.map((point) => point.loss_ewma)]);
  plots.explained.show([times, page.points.map((point) => point.explained_variance_ratio)]);
  const slider = element("slider");
  const at = page.versions.indexOf(page.shown.about.version);
  slider.max = Math.max(page.versions.length - 1, 0);
  slider.value = Math.max(at, 0);
  const published = words.time(page.shown.about.published_at);
  const place = at < 0 ? "no longer kept" : `${at + 1} of ${page.versions.length}`;
  say("slider-says", `${words.count(page.shown.about.version)} (${place}), published ${published}`);
  slider.setAttribute("aria-valuetext", `version ${words.count(page.shown.about.version)}, published ${published}`);
  element("follow").setAttribute("aria-pressed", page.follow);
}

function drawScree(shares) {
  let sum = 0;
  plots.scree.show([shares.map((_, i) => i + 1), shares, shares.map((share) => (sum += share))]);
}

function drawComponents() {
  const { about, components } = page.shown;
  fill(element("components"), shape(), components.map((vector, i) => ({
    vector,
    caption: `${i + 1} · ${words.percent(about.explained_variance_ratio[i])}`,
    label: `Component ${i + 1}, which explains ${words.percent(about.explained_variance_ratio[i])}`,
  })));
}

/** The shape that the person has told; null when vectors are no pictures, or the shape does not fit. */
function shape() {
  const says = element("shape-says");
  try {
    const told = shapeOf(element("shape").value, page.shown.about.dimensions);
    says.textContent = "";
    return told;
  } catch (error) {
    says.textContent = error.message;
    says.classList.add("bad");
    return null;
  }
}

function offerComponents(k) {
  for (const [id, first] of [["probes-x", 1], ["probes-y", Math.min(2, k)]]) {
    const select = element(id);
    if (select.options.length === k) continue;
    select.replaceChildren(...Array.from({ length: k }, (_, i) => words.make("option", { value: i + 1 }, `${i + 1}`)));
    select.value = first;
  }
}

async function refreshProbes() {
  const [x, y] = ["probes-x", "probes-y"].map((id) => Number(element(id).value));
  const { coordinates } = await api.probes(page.shown.about.version, x, y);
  const points = coordinates.map(([a, b], i) => ({ a, b, kind: i < coordinates.length - LATEST ? 0 : 1 }));
  if (page.own) points.push({ a: page.own[x - 1], b: page.own[y - 1], kind: 2 });
  points.sort((p, q) => p.a - q.a);
  const ofKind = (kind) => points.map((point) => (point.kind === kind ? point.b : null));
  plots.probes.show([points.map((point) => point.a), ofKind(0), ofKind(1), ofKind(2)]);
  element("probes-none").hidden = points.length > 0;
}

// ---- hearing the person

/** Do what a person asked for; a fault of it is told as a fault of a tick is. */
const act = (deed) => () => Promise.resolve(deed()).catch(fail);

function listen() {
  element("slider").addEventListener("input", act(() => {
    const version = page.versions[Number(element("slider").value)];
    page.follow = version === newest();
    return turnTo(version).then(tell);
  }));
  element("follow").addEventListener("click", act(() => {
    page.follow = !page.follow;
    element("follow").setAttribute("aria-pressed", page.follow);
    return page.follow ? turnTo(newest()).then(tell) : undefined;
  }));
  for (const id of ["probes-x", "probes-y"]) element(id).addEventListener("change", act(refreshProbes));
  element("shape").value = new URLSearchParams(location.hash.slice(1)).get("shape") ?? "";
  element("shape").addEventListener("change", act(() => {
    const told = element("shape").value.trim();
    history.replaceState(null, "", told ? `#shape=${encodeURIComponent(told)}` : location.pathname);
    drawComponents();
    return trial.again();
  }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", act(() => page.shown && drawComponents()));
}

async function live() {
  if (!document.hidden) await tick();
  setTimeout(live, EVERY_MS);
}

listen();
live();
