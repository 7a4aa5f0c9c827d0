// A chart's layout: axes, grid and marks in the page's colours. Plotly only draws; pointer and keys are handled elsewhere.
import { logTicks } from "./axis.js";

export const MARGIN = { l: 44, r: 12, t: 8, b: 22 };
export const CONFIG = { staticPlot: true, displayModeBar: false };

// `range`: the visible steps; `places`: the drawn buckets.
export function layoutOf(plot, range, places, { palette, axis: { now: axis }, view, marks }) {
  const { text, grid, line, font } = palette, { clientWidth: width, clientHeight: height } = plot;
  const x = range.map(axis.at);
  const shared = { gridcolor: grid, linecolor: line, zeroline: false, tickfont: { color: text, size: 11 }, fixedrange: true };
  return {
    width, height, margin: MARGIN, paper_bgcolor: "transparent", plot_bgcolor: "transparent", showlegend: false, hovermode: false,
    font: { family: font, color: text, size: 11 }, shapes: marks.shapes(range, axis, palette, width),
    xaxis: { ...shared, ...axis.ticks(x), showgrid: false, showline: true, range: x },
    yaxis: view.now.log ? { ...shared, type: "log", ...logTicks(positive(places)) } : { ...shared, nticks: 4, rangemode: "fromZero" in plot.dataset ? "tozero" : "normal" },
  };
}

const positive = (places) => places.flatMap(({ low, mean, high }) => [low > 0 ? low : mean, high]).filter((each) => each > 0);
