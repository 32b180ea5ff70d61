// The tabs: one panel is shown at a time, and its name is kept in the address.

import { element } from "./dom.js";
import * as view from "./view.js";

const tabs = [...document.querySelectorAll("[role=tab]")];
const usable = () => tabs.filter(({ hidden }) => !hidden);
const panelOf = (tab) => element(tab.getAttribute("aria-controls"));

export const isOpen = (name) => !element(`${name}-panel`).hidden;

/** Open the tab of a name or, if there is none, the first. */
export function open(name) {
  const opened = usable().find(({ id }) => id === `${name}-tab`) ?? usable()[0];
  for (const tab of tabs) {
    tab.setAttribute("aria-selected", tab === opened);
    tab.tabIndex = tab === opened ? 0 : -1;
    panelOf(tab).hidden = tab !== opened;
  }
}

/** Open the tabs that the user chooses; `onOpen()` is called after each. */
export function listen(onOpen) {
  for (const tab of tabs) tab.addEventListener("click", () => {
    view.set("tab", tab.id.replace("-tab", ""));
    open(view.get("tab"));
    onOpen();
  });
  element("tabs").addEventListener("keydown", ({ key }) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[key];
    if (!step) return;
    const next = usable().at((usable().indexOf(document.activeElement) + step) % usable().length);
    next.focus();
    next.click();
  });
}
