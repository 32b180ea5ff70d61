// The bearer token, kept for this tab, and the form that asks for it.

import { element, setStatus, setText } from "./dom.js";

const form = element("token-form");
const field = element("token");

let asked = null; // the question, while it is open: a promise of whether a token was entered
let answer = null; // settles it

export const token = () => sessionStorage.getItem("token");

/** Ask for a token and say why. If it `isOptional`, the page works without, and the form can be cancelled. */
export function ask(why, isOptional) {
  if (!isOptional) setStatus("trouble", why);
  setText("token-why", why);
  element("token-cancel").hidden = !isOptional;
  form.hidden = false;
  if (isOptional || document.activeElement === document.body) field.focus(); // does not interrupt what the user types
  asked ??= new Promise((resolve) => {
    answer = (isEntered) => {
      asked = null;
      resolve(isEntered);
    };
  });
  return asked;
}

/** The sidecar has accepted the token: close the form, unless it asks for another one. */
export function accept() {
  if (!asked && !form.hidden) close();
}

function close() {
  const hadFocus = form.contains(document.activeElement);
  form.hidden = true;
  field.value = "";
  if (hadFocus) element("content").focus();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", field.value.trim());
  answer?.(true);
});

element("token-cancel").addEventListener("click", () => {
  close();
  answer(false);
});
