// What the page shows, kept in the query of its address: a link or a reload shows the same. It holds the values of all inputs with a
// name, and others. The window's event "view" says that one has changed.

const values = new URLSearchParams(location.search);
const inputs = document.querySelectorAll("main [name]");

/** null if there is none. */
export const get = (name) => values.get(name);

/** Keep values; what is empty leaves the address. */
export function set(changes) {
  for (const [name, value] of Object.entries(changes)) {
    if (value) values.set(name, value);
    else values.delete(name);
  }
  history.replaceState(null, "", location.pathname + (values.size ? `?${values}` : "") + location.hash);
  fill();
  dispatchEvent(new Event("view"));
}

function fill() {
  for (const input of inputs) {
    const value = get(input.name);
    if (isChoice(input)) input.checked = input.value === (value ?? "");
    else if (value !== null) input.value = value;
  }
}

const isChoice = ({ type }) => type === "radio" || type === "checkbox";

for (const input of inputs) input.addEventListener("change", () => {
  set({ [input.name]: isChoice(input) && !input.checked ? null : input.value.trim() });
});
fill();
