// One chart. It is drawn while it can be seen, at most twice a second, and in the theme's colours.
import { thin } from "./thin.js";

const BETWEEN_DRAWINGS_MS = 500;
const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset", showTips: false };

export class Panel {
  #plot; #traces; #store; #palette; #seen = false; #stale = true; #drawnAt = 0; #timer = 0; #wired = false; #onStep;

  constructor(plot, store, palette, onStep) {
    this.#plot = plot;
    this.#store = store;
    this.#palette = palette;
    this.#onStep = onStep;
    this.#traces = JSON.parse(plot.dataset.traces);
    new IntersectionObserver(([entry]) => { this.#seen = entry.isIntersecting; this.#draw(); }, { rootMargin: "120px" }).observe(plot);
  }

  repaint(palette = this.#palette) {
    this.#palette = palette;
    this.#stale = true;
    this.#draw();
  }

  #draw() {
    if (!this.#seen || !this.#stale || this.#timer) return;
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      this.#stale = false;
      this.#drawnAt = Date.now();
      this.#paint();
    }, Math.max(0, this.#drawnAt + BETWEEN_DRAWINGS_MS - Date.now()));
  }

  #paint() {
    const traces = this.#traces.map((trace) => this.#trace(trace));
    const isBlank = traces.every((trace) => trace.x.length === 0);
    this.#plot.classList.toggle("blank", isBlank);
    if (isBlank) return;
    window.Plotly.react(this.#plot, traces, this.#layout(), CONFIG);
    if (this.#wired) return;
    this.#wired = true;
    this.#plot.on("plotly_click", ({ points }) => this.#onStep(points[0].x));
  }

  #trace({ key, label, tone, marks }) {
    const points = marks ? this.#store.points(key) : thin(this.#store.points(key));
    const colour = this.#palette[tone];
    return {
      x: points.map(([step]) => step), y: points.map(([, value]) => value), name: label,
      mode: marks ? "markers" : points.length === 1 ? "markers" : "lines",
      line: { color: colour, width: tone === "second" ? 1.4 : 1.8 },
      marker: marks ? { color: this.#palette.surface, size: 9, line: { color: colour, width: 2 } } : { color: colour, size: 5 },
      cliponaxis: !marks, hovertemplate: "%{y:.4~g}<extra>%{fullData.name}</extra>",
    };
  }

  #layout() {
    const { text, grid, line, raised, ink, font } = this.#palette;
    const axis = { gridcolor: grid, linecolor: line, zeroline: false, tickfont: { color: text, size: 11 }, fixedrange: matchMedia("(pointer: coarse)").matches };
    return {
      margin: { l: 44, r: 12, t: 10, b: 26 }, paper_bgcolor: "transparent", plot_bgcolor: "transparent", showlegend: false,
      font: { family: font, color: text, size: 11 }, hovermode: "x unified", uirevision: "kept",
      hoverlabel: { bgcolor: raised, bordercolor: line, font: { color: ink, family: font, size: 12 } },
      xaxis: { ...axis, showgrid: false, rangemode: "tozero", showline: true, nticks: 6, tickformat: ",d", hoverformat: ",d", unifiedhovertitle: { text: "step %{x:,d}" } },
      yaxis: { ...axis, nticks: 5, rangemode: "fromZero" in this.#plot.dataset ? "tozero" : "normal" },
    };
  }
}
