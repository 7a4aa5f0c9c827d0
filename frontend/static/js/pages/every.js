// Common to every page.
import { wireQuestions } from "../lib/ask.js";
import { keepAges, tellHere } from "../lib/clock.js";
import { wireCopying } from "../lib/copy.js";
import { showKeyErrors } from "../lib/security-key.js";
import { wireThemeSwitch } from "../lib/theme.js";
import { showToasts } from "../lib/toasts.js";

for (const button of document.querySelectorAll("[data-theme-toggle]")) wireThemeSwitch(button);
wireCopying();
wireQuestions();
tellHere(document);
keepAges();
showToasts();
showKeyErrors();
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const menu of document.querySelectorAll("details.menu[open]")) { menu.open = false; menu.querySelector("summary").focus(); }
});
