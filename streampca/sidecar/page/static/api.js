// Calls to the sidecar's HTTP interface. Paths are relative, so the page also works behind a proxy's path prefix.

import { save } from "./files.js";
import { accept, ask, token } from "./token.js";
import * as view from "./view.js";

const TIMEOUT_MS = 10_000;

/** The sidecar answered with an error; `message` is its text. */
export class RequestError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** No answer: the sidecar or the connection to it is down. */
export class Unreachable extends Error {
  constructor(cause) {
    super("the sidecar does not respond", { cause });
  }
}

const unreachable = (error) => { throw new Unreachable(error); };

const topic = view.get("topic"); // one that is not served; null: the served one

/** The topic in the page's address; null: the one that the sidecar serves. */
export const otherTopic = () => topic;

/** With `isOptional`, the page works without the answer. */
async function request(path, options = {}, isOptional = false) {
  const sent = token();
  const headers = { ...options.headers, ...(sent && { Authorization: `Bearer ${sent}` }) };
  const signal = AbortSignal.timeout(TIMEOUT_MS);
  const answer = await fetch(path, { cache: "no-store", signal, ...options, headers }).catch(unreachable);
  if (answer.ok) {
    accept();
    return answer;
  }
  const { error } = await answer.json().catch(() => ({}));
  if (answer.status === 401 || (answer.status === 403 && error)) { // without a sentence, a proxy forbids it
    const isOld = sent !== token(); // another request has asked meanwhile
    if (isOld || await ask((sent && error) || "This sidecar needs a token.", isOptional)) return request(path, options, isOptional);
  }
  if (error) throw new RequestError(answer.status, error);
  throw new Unreachable(answer.status); // a proxy answers for a sidecar that is down
}

async function json(path, options) {
  const answer = await request(path, options);
  return answer.json().catch(unreachable);
}

function post(path, content) {
  return json(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content) });
}

/** A path and a query of what is not null. */
function query(path, values) {
  const present = Object.entries(values).filter(([, value]) => value !== null);
  return present.length ? `${path}?${new URLSearchParams(present)}` : path;
}

export const history = (after) => json(query("v1/page/history", { after, topic }));
export const workers = () => json(query("v1/page/workers", { topic }));
export const versions = async () => (await json("v1/models")).versions;
export const aboutPath = (version) => query(topic ? "v1/page/model" : "v1/model", { version, topic });
export const angles = (version, other) => json(`v1/page/angles?version=${version}&other=${other}`);
export const recent = (version, x, y) => json(`v1/page/recent?version=${version}&x=${x}&y=${y}`);
export const example = (version) => json(`v1/page/example?version=${version}`);
/** `rows` are {vectors} or {records}. */
export const project = (rows, version) => post("v1/project", { ...rows, version, fields: ["p"] });
export const reconstruct = (rows, version) => post("v1/reconstruct", { ...rows, version });

/** Whether a link must be followed by `download`, since it needs a token. */
export const needsToken = () => token() !== null;

/** Save what is at a path as a file. */
export async function download(path, name) {
  save(await (await request(path, {}, true)).blob().catch(unreachable), name);
}

/** A version: {about, components}; components are arrays of length d, none for a topic that is not served. */
export async function model(version) {
  const axes = topic ? null : request(`v1/model/components?version=${version}`, { headers: { Accept: "application/x-npy" } });
  const [about, answer] = await Promise.all([json(aboutPath(version)), axes]);
  return { about, components: answer ? rowsOfNpy(await answer.arrayBuffer().catch(unreachable)) : [] };
}

/** The rows of a two-dimensional `.npy` file of little-endian floats in C order, as the sidecar sends it. */
function rowsOfNpy(buffer) {
  const view = new DataView(buffer);
  const long = view.getUint8(6) >= 2; // the header's length has 4 bytes from version 2 of the format on, before that 2
  const start = long ? 12 : 10;
  const length = long ? view.getUint32(8, true) : view.getUint16(8, true);
  const header = new TextDecoder("latin1").decode(new Uint8Array(buffer, start, length));
  const match = /'descr': '<f([48])'.*'fortran_order': False.*'shape': \((\d+), (\d+)\)/.exec(header);
  if (!match) throw new Error(`not rows of floats: ${header.trim()}`);
  const [size, k, d] = match.slice(1).map(Number);
  const Floats = size === 4 ? Float32Array : Float64Array;
  return Array.from({ length: k }, (_, i) => new Floats(buffer, start + length + i * d * size, d));
}
