// The theme switch. Light and dark follow the system until the reader chooses.
const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");

export const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";

export function onThemeChange(tell) {
  system.addEventListener("change", tell);
  new MutationObserver(tell).observe(root, { attributeFilter: ["data-theme"] });
}

function choose(theme) {
  root.dataset.theme = theme;
  try { localStorage.setItem("theme", theme); } catch { /* chosen for this page only */ }
}

export function wireThemeSwitch(button) {
  const say = () => button.setAttribute("aria-label", `Theme: ${isDark() ? "dark" : "light"}. Switch to ${isDark() ? "light" : "dark"}`);
  button.addEventListener("click", () => choose(isDark() ? "light" : "dark"));
  onThemeChange(say);
  say();
}
