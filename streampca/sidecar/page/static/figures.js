// Tables of what charts and pictures show, for keyboards and screen readers; filled only while they are open.

import { make, row } from "./dom.js";

export const MAX_ROWS = 500;

export class Figures {
  #table = make("table");
  #details;
  #content = () => ({ columns: [], rows: [] });
  #shown = "";

  /** A closed table after an element; `name` says of what. */
  constructor(after, name) {
    const unseen = make("span", { class: "unseen" }, ` of ${name}`);
    const scroll = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Figures of ${name}` }, this.#table);
    this.#details = make("details", { class: "figures" }, make("summary", {}, "Figures", unseen), scroll);
    this.#details.addEventListener("toggle", () => this.#fill());
    after.after(this.#details);
  }

  /** `content` returns {columns, rows, note}: texts, lists of texts, and what the rows leave out. */
  show(content) {
    this.#content = content;
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
