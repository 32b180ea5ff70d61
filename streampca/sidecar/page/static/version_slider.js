// A slider over the versions in the store.

import { element, setText } from "./dom.js";
import { count, time } from "./format.js";

/** Show which of all versions is selected. */
export function show(id, { version, published_at: at }, versions) {
  const slider = element(id);
  const index = versions.indexOf(version);
  slider.max = Math.max(versions.length - 1, 0);
  slider.value = Math.max(index, 0);
  const position = index < 0 ? "no longer in the store" : `${index + 1} of ${versions.length}`;
  setText(`${id}-value`, `${count(version)} (${position}), published ${time(at)}`);
  slider.setAttribute("aria-valuetext", `version ${count(version)}, published ${time(at)}`);
}
