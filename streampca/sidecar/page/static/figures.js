// Below a chart or pictures: what they show as a table, for keyboards and screen readers, filled only while it is open; and as files.

import { make, row } from "./dom.js";
import { csvOf, nameOf, pngOf, save } from "./files.js";

export const MAX_ROWS = 500;

export class Figures {
  #table = make("table");
  #details;
  #content = () => ({ columns: [], rows: [] });
  #values = this.#content;
  #shown = "";

  /** A closed table after an element; `name` says of what. */
  constructor(after, name) {
    const unseen = () => make("span", { class: "unseen" }, ` of ${name}`);
    const scroll = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Figures of ${name}` }, this.#table);
    this.#details = make("details", { class: "figures" }, make("summary", {}, "Figures", unseen()), scroll);
    this.#details.addEventListener("toggle", () => this.#fill());
    const files = make("div", { class: "files" });
    for (const [kind, content] of Object.entries({ CSV: () => csvOf(this.#values()), PNG: () => pngOf(after, name) })) {
      const button = make("button", { type: "button" }, kind, unseen());
      button.addEventListener("click", async () => save(await content(), nameOf(name, kind.toLowerCase())));
      files.append(button);
    }
    after.after(this.#details, files);
  }

  /** `content` returns {columns, rows, note}: texts, lists of texts, and what the rows leave out; `values` all numbers. */
  show(content, values) {
    [this.#content, this.#values] = [content, values];
    this.#fill();
  }

  #fill() {
    if (!this.#details.open) return;
    const { columns, rows, note } = this.#content();
    const text = JSON.stringify([columns, rows, note]);
    if (text === this.#shown) return; // a reader keeps its place
    this.#shown = text;
    const head = make("tr", {}, ...columns.map((name) => make("th", { scope: "col" }, name)));
    this.#table.replaceChildren(
      ...(note ? [make("caption", {}, note)] : []), make("thead", {}, head), make("tbody", {}, ...rows.map((cells) => row(...cells))),
    );
  }
}
