// Before the first paint: applies the chosen theme, and marks that scripts run.
(() => {
  const root = document.documentElement;
  root.classList.add("scripted");
  try {
    const chosen = localStorage.getItem("theme");
    if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  } catch { /* storage may be forbidden: the system's theme it is */ }
})();
