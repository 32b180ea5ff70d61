// The sidecar's HTTP interface, as the page uses it. Paths are relative, so a prefix of a proxy does no harm.

const PATIENCE_MS = 10_000;

/** The sidecar answered, and said no. `message` is its own sentence. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** No answer: the sidecar is not there, or something between us and it is broken. */
export class Gone extends Error {}

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS), ...options });
  } catch (error) {
    throw new Gone(error.message);
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  if (said.error) throw new Refused(answer.status, said.error);
  throw new Gone(`status ${answer.status}`); // a proxy speaks for a sidecar that is away
}

async function json(path, options) {
  const answer = await ask(path, options);
  return answer.json().catch((error) => { throw new Gone(error.message); });
}

function post(path, content) {
  return json(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content) });
}

export const history = (after) => json(after === null ? "v1/history" : `v1/history?after=${after}`);
export const workers = () => json("v1/workers");
export const versions = async () => (await json("v1/models")).versions;
export const about = (version) => json(`v1/model?version=${version}`);
export const probes = (version, x, y) => json(`v1/probes?version=${version}&x=${x}&y=${y}`);
export const project = (vector, version) => post("v1/project", { vectors: [vector], version });
export const reconstruct = (vector, version) => post("v1/reconstruct", { vectors: [vector], version });
export const fromCoordinates = (coordinates, version) => post("v1/reconstruct", { coordinates: [coordinates], version });

/** The axes of a version, an array of k typed arrays of length d. */
export async function components(version) {
  const answer = await ask(`v1/model/components?version=${version}`, { headers: { Accept: "application/x-npy" } });
  return rowsOfNpy(await answer.arrayBuffer());
}

/** Rows of a two-dimensional `.npy` file of floats, little-endian and in C order, as the sidecar writes it. */
function rowsOfNpy(buffer) {
  const view = new DataView(buffer);
  const long = view.getUint8(6) >= 2; // the format's version says how many bytes tell the header's length
  const start = long ? 12 : 10;
  const length = long ? view.getUint32(8, true) : view.getUint16(8, true);
  const header = new TextDecoder("latin1").decode(new Uint8Array(buffer, start, length));
  const found = /'descr': '<f([48])'.*'fortran_order': False.*'shape': \((\d+), (\d+)\)/.exec(header);
  if (!found) throw new Error(`not rows of floats: ${header.trim()}`);
  const [size, k, d] = found.slice(1).map(Number);
  const Floats = size === 4 ? Float32Array : Float64Array;
  return Array.from({ length: k }, (_, i) => new Floats(buffer, start + length + i * d * size, d));
}
