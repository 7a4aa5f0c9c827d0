// Before the page's own scripts: what moves without anybody's doing, by the browser's own measure, in `moves`.
window.moves = [];
const told = ({ node, previousRect: a, currentRect: b }) =>
  `${node?.id || node?.className || node?.nodeName}: ${Math.round(a.y)}+${Math.round(a.height)} to ${Math.round(b.y)}+${Math.round(b.height)}`;
new PerformanceObserver((list) => {
  for (const each of list.getEntries()) if (!each.hadRecentInput) moves.push({ value: each.value, what: each.sources.map(told) });
}).observe({ type: "layout-shift", buffered: true });
