// The usage chart: one stacked bar per day, in the colours of the legend and theme.
import { palette } from "../charts/palette.js";
import { onThemeChange } from "../lib/theme.js";

const plot = document.querySelector("[data-usage-plot]");
const { days, kinds } = JSON.parse(document.getElementById("usage-days").textContent);

function toneOf(kind) { // read from the legend, so that colours are defined once
  return getComputedStyle(document.querySelector(`.pool-bar [data-kind="${kind}"], .kinds [data-kind="${kind}"]`))[document.querySelector(`.pool-bar [data-kind="${kind}"]`) ? "fill" : "backgroundColor"];
}

function draw() {
  const { text, grid, line, raised, ink, font } = palette();
  const axis = { gridcolor: grid, linecolor: line, zeroline: false, tickfont: { color: text, size: 11 }, fixedrange: true };
  const traces = Object.entries(kinds).filter(([, hours]) => hours.some((each) => each > 0)).map(([kind, hours]) => ({
    type: "bar", name: kind, x: days, y: hours, marker: { color: toneOf(kind) }, hovertemplate: "%{y:.4~g}<extra>%{fullData.name}</extra>",
  }));
  const layout = {
    barmode: "stack", bargap: 0.18, margin: { l: 44, r: 8, t: 8, b: 30 }, paper_bgcolor: "transparent", plot_bgcolor: "transparent", showlegend: false,
    font: { family: font, color: text, size: 11 }, hovermode: "x unified", hoverlabel: { bgcolor: raised, bordercolor: line, font: { color: ink, family: font, size: 12 } },
    xaxis: { ...axis, showgrid: false, type: days.length > 1 ? "date" : "category", tickformat: "%e %b", hoverformat: "%Y-%m-%d", nticks: 7 }, yaxis: { ...axis, nticks: 5, rangemode: "tozero" },
  };
  window.Plotly.react(plot, traces, layout, { displayModeBar: false, responsive: true, showTips: false });
}

draw();
onThemeChange(draw);
