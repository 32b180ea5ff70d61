// The page at `docs`: what openapi.json describes, with a form for each operation. Paths are relative, as in api.js.

import { element, make, setStatus } from "./dom.js";
import { recordOf, rounded, roundedAlike } from "./example.js";

const SHOWN = 100_000; // letters of an answer

const content = element("content");
const code = (text) => make("code", {}, text);

/** The parts of a text with `code`. */
const parts = (text) => text.split("`").map((part, i) => (i % 2 ? code(part) : part));
const prose = (text) => make("p", {}, ...parts(text));
const paragraphs = (text) => text.split("\n\n").map(prose);

/** What a schema allows, with links to the schemas that it names. */
function kind(schema) {
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    return [make("a", { href: `#${name}` }, name)];
  }
  if (schema.anyOf) return schema.anyOf.flatMap((each, i) => [...(i ? [" or "] : []), ...kind(each)]);
  const words = schema.enum ?? (schema.const !== undefined ? [schema.const] : null);
  if (words) return words.flatMap((word, i) => [...(i ? [" or "] : []), code(String(word))]);
  if (schema.type === "array") return ["list of ", ...kind(schema.items ?? {})];
  return [[schema.type ?? "anything"].flat().join(" or ")];
}

function fieldTable(caption, fields) {
  const rows = fields.map(([name, schema, isRequired]) => {
    const about = [...kind(schema), isRequired ? ", required" : "", schema.default != null ? `, default ${JSON.stringify(schema.default)}` : ""];
    return make("tr", {}, make("th", { scope: "row" }, code(name)), make("td", {}, ...about), make("td", {}, ...parts(schema.description ?? "")));
  });
  const head = make("tr", {}, ...["Name", "Type", "Meaning"].map((text) => make("th", { scope: "col" }, text)));
  return make("table", {}, make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, ...rows));
}

/** Media types of a body, each with its schema, and the example. */
function bodyOf(title, content) {
  const kinds = Object.entries(content).map(([type, { schema }]) => make("li", {}, code(type), ": ", ...kind(schema ?? {})));
  const examples = Object.values(content).filter(({ example }) => example !== undefined);
  const shown = ({ example }) => make("pre", {}, typeof example === "string" ? example : JSON.stringify(example));
  return [make("h4", {}, title), make("ul", {}, ...kinds), ...examples.map(shown)];
}

/** The header with the token of this tab, if there is one. */
function authorization() {
  const token = sessionStorage.getItem("token");
  return token ? { Authorization: `Bearer ${token}` } : {};
}

/** A vector like those of the served model; null without a model, or without the token that is needed. */
async function readExample() {
  const answer = await fetch("v1/page/example", { headers: authorization(), cache: "no-store" }).catch(() => null);
  return answer?.ok ? answer.json() : null;
}

/** The body of a request as in the description, but with a vector of the served model, by names if it has them. */
function bodyFor(described, served) {
  const vector = rounded(served);
  const record = served.names && recordOf(vector, served.names);
  const body = { ...described };
  if ("coordinates" in body) body.coordinates = [roundedAlike(served.coordinates)];
  if ("inputs" in body) body.inputs = [{ ...body.inputs[0], shape: [1, vector.length], data: vector }];
  const isTable = "instances" in body;
  if (!isTable && !("vectors" in body || "records" in body)) return body;
  for (const name of ["vectors", "records", "instances"]) delete body[name];
  const [named, plain] = isTable ? ["dataframe_records", "instances"] : ["records", "vectors"];
  return { ...(record ? { [named]: [record] } : { [plain]: [vector] }), ...body };
}

/** Fill what the user has not changed in a form with values of the served model. */
async function fillForm(inputs, text, described) {
  const untouched = text?.value;
  const served = await readExample();
  if (!served) return;
  const values = { model_name: served.topic, version: served.version, model_version: served.version };
  for (const { name, where, input } of inputs) if (where === "path" && !input.value) input.value = values[name] ?? "";
  if (text && text.value === untouched) text.value = JSON.stringify(bodyFor(described, served));
}

/** A form that sends the operation's request, and shows the answer. */
function tryForm(id, method, path, parameters, body) {
  const answer = make("pre", { role: "status" });
  const label = (name, input) => make("label", {}, name, input);
  const inputs = parameters.map(({ name, in: where, schema }) => {
    const input = make("input", { type: "text", name, autocomplete: "off", ...(where === "path" && { required: "" }) });
    return { name, where, input, isList: schema.type === "array" };
  });
  const json = body?.content["application/json"];
  const text = json && make("textarea", { rows: 4, spellcheck: "false" });
  const described = json?.example ?? {};
  if (text) text.value = JSON.stringify(described);
  const fields = [...inputs.map(({ name, input }) => label(name, input)), ...(text ? [label("Body", text)] : [])];
  const form = make("form", { "aria-label": `Try ${id}` }, ...fields, make("button", { type: "submit" }, "Send"), answer);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    answer.textContent = "…";
    const query = new URLSearchParams();
    let target = path.slice(1);
    for (const { name, where, input, isList } of inputs) {
      if (where === "path") target = target.replace(`{${name}}`, encodeURIComponent(input.value));
      else if (input.value) for (const value of isList ? input.value.split(",") : [input.value]) query.append(name, value.trim());
    }
    const headers = { ...authorization(), ...(text && { "Content-Type": "application/json" }) };
    const options = { method: method.toUpperCase(), headers, cache: "no-store", ...(text && { body: text.value }) };
    try {
      const got = await fetch(query.size ? `${target}?${query}` : target, options);
      answer.textContent = `${got.status} ${got.statusText}\n${(await got.text()).slice(0, SHOWN)}`;
    } catch (error) {
      answer.textContent = `The sidecar does not respond: ${error.message}`;
    }
  });
  const details = make("details", {}, make("summary", {}, "Try it"), form);
  const isDescribed = () => !text || text.value === JSON.stringify(described);
  details.addEventListener("toggle", () => { if (details.open && isDescribed()) fillForm(inputs, text, described); });
  return details;
}

function operationOf(path, method, operation) {
  const { operationId: id, description, parameters = [], requestBody, responses } = operation;
  const rows = parameters.map(({ name, in: where, schema, description: about, required }) =>
    [name, { description: about, ...schema }, required || where === "path"]);
  const answers = Object.entries(responses).map(([status, { description: about, content: bodies = {} }]) =>
    make("div", {}, ...bodyOf(`Answer ${status}: ${about}`, bodies)));
  return make("section", { id, "aria-labelledby": `${id}-title` },
    make("h3", { id: `${id}-title` }, code(`${method.toUpperCase()} ${path}`)),
    ...paragraphs(description ?? ""),
    ...(rows.length ? [fieldTable("Parameters", rows)] : []),
    ...(requestBody ? bodyOf("Request", requestBody.content) : []),
    ...answers, tryForm(id, method, path, parameters, requestBody));
}

function schemaOf(name, { description = "", properties = {}, required = [] }) {
  const rows = Object.entries(properties).map(([field, schema]) => [field, schema, required.includes(field)]);
  return make("section", { id: name, "aria-labelledby": `${name}-title` },
    make("h3", { id: `${name}-title` }, name), ...paragraphs(description), fieldTable("Fields", rows));
}

/** The field for a token, which is kept for this tab, as by the page. */
function tokenField() {
  const field = make("input", { type: "password", autocomplete: "off" });
  field.value = sessionStorage.getItem("token") ?? "";
  field.addEventListener("change", () => sessionStorage.setItem("token", field.value.trim()));
  return make("section", {}, make("label", {}, "Token for what is tried here", field));
}

function show(api) {
  const operations = Object.entries(api.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ path, method, operation })));
  const tags = [...new Set(operations.map(({ operation }) => operation.tags[0]))];
  const of = (tag) => operations.filter(({ operation }) => operation.tags[0] === tag);
  const link = ({ path, method, operation }) =>
    make("li", {}, make("a", { href: `#${operation.operationId}` }, `${method.toUpperCase()} ${path}`), " ", ...parts(operation.summary));
  content.append(
    make("section", { "aria-label": "About" }, ...paragraphs(api.info.description)),
    ...(api.components.securitySchemes ? [tokenField()] : []),
    make("nav", { "aria-label": "Operations" }, ...tags.flatMap((tag) => [make("h2", {}, tag), make("ul", {}, ...of(tag).map(link))])),
    make("h2", {}, "Operations"),
    ...operations.map(({ path, method, operation }) => operationOf(path, method, operation)),
    make("h2", {}, "Schemas"),
    ...Object.entries(api.components.schemas).map(([name, schema]) => schemaOf(name, schema)));
  setStatus("serving", `Version ${api.info.version}, ${operations.length} operations`);
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

try {
  show(await (await fetch("openapi.json")).json());
} catch (error) {
  setStatus("unreachable", `The description cannot be read: ${error.message}`);
}
