// The page's colours for Plotly. A probe element resolves light-dark() and color-mix(), which custom properties do not.
export function palette() {
  const probe = document.createElement("i");
  document.body.append(probe);
  const colour = (token) => { probe.style.color = `var(${token})`; return getComputedStyle(probe).color; };
  const found = {
    first: colour("--stream"), second: colour("--ember"), ink: colour("--ink"), text: colour("--ink-3"),
    grid: colour("--grid"), line: colour("--line"), raised: colour("--raised"), surface: colour("--surface"),
    font: getComputedStyle(document.body).fontFamily,
  };
  probe.remove();
  return found;
}
