// Before the first paint: the reader's own choice of theme, and the mark that scripts run here.
(() => {
  const root = document.documentElement;
  root.classList.add("scripted");
  try {
    const chosen = localStorage.getItem("theme");
    if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  } catch { /* storage may be forbidden: the system's theme it is */ }
})();
