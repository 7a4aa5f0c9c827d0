// Pointer and keys on a chart: the crosshair follows them, a drag selects steps, a click opens a step.
const DRAG_PX = 6;
const KEYS = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10 };

export function listen(panel, { box, chosen }, { crosshair, view, onStep, extent }) {
  let begin = null;
  const leftOf = (event) => event.clientX - box.getBoundingClientRect().left;
  const inRange = (step) => Math.round(Math.min(Math.max(step, panel.range[0]), panel.range[1]));
  const stepOf = (event) => inRange(panel.stepAt(leftOf(event)));
  const known = (step) => { const places = panel.at(step).map(({ place }) => place).filter((each) => each?.count === 1); return places.length ? places[0].from : step; };

  function drawChosen(event) {
    const [a, b] = [begin, leftOf(event)].sort((one, other) => one - other);
    chosen.hidden = b - a < DRAG_PX;
    chosen.style.transform = `translateX(${a}px)`;
    chosen.style.width = `${b - a}px`;
  }

  box.addEventListener("pointermove", (event) => {
    crosshair.show(known(stepOf(event)));
    if (begin !== null) drawChosen(event);
  });
  box.addEventListener("pointerleave", () => { if (begin === null && document.activeElement !== box) crosshair.show(null); });
  box.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.pointerType === "touch") return; // touch scrolls
    begin = leftOf(event);
    box.setPointerCapture(event.pointerId);
  });
  box.addEventListener("pointerup", (event) => {
    if (begin === null) return;
    const [from, to] = [begin, leftOf(event)].sort((one, other) => one - other);
    begin = null;
    chosen.hidden = true;
    if (to - from < DRAG_PX) return;
    const steps = [Math.floor(panel.stepAt(from)), Math.ceil(panel.stepAt(to))].map(inRange);
    if (steps[0] < steps[1]) view.set({ from: steps[0], to: steps[1] });
    box.dataset.dragged = "";
  });
  box.addEventListener("pointercancel", () => { begin = null; chosen.hidden = true; });
  box.addEventListener("click", (event) => {
    if ("dragged" in box.dataset) delete box.dataset.dragged;
    else onStep?.(known(stepOf(event)));
  });
  box.addEventListener("dblclick", () => view.set({ from: null, to: null }));
  box.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const [first, last] = panel.range, at = crosshair.step ?? Math.min(last, extent()[1]);
    if (event.key in KEYS) crosshair.show(inRange(at + KEYS[event.key]));
    else if (event.key === "Home") crosshair.show(inRange(extent()[0]));
    else if (event.key === "End") crosshair.show(inRange(extent()[1]));
    else if (event.key === "Enter") onStep?.(known(at));
    else if (event.key === "+") zoom(at, (last - first) / 4);
    else if (event.key === "-") zoom(at, last - first);
    else if (event.key === "Escape") { crosshair.show(null); return; } else return;
    event.preventDefault();
    describe();
  });
  box.addEventListener("focus", describe);
  box.addEventListener("blur", () => crosshair.show(null));

  function zoom(at, reach) {
    const [first, last] = extent(), from = Math.max(0, Math.floor(at - reach)), to = Math.ceil(at + reach);
    if (from <= first && to >= last) view.set({ from: null, to: null });
    else if (to - from >= 2) view.set({ from, to: Math.min(to, last + 1) });
  }

  // Exposes the chart as a slider over the steps to screen readers.
  function describe() {
    const [first, last] = extent(), at = crosshair.step ?? last;
    if (!Number.isFinite(last)) return; // no points yet
    const said = panel.at(at).filter(({ place }) => place).map(({ label, place }) => `${label} ${place.mean.toPrecision(4)}`);
    const now = { valuemin: first, valuemax: last, valuenow: at, valuetext: `step ${at}: ${said.join(", ") || "no point"}` };
    for (const [name, value] of Object.entries(now)) box.setAttribute(`aria-${name}`, value);
  }
  box.tabIndex = 0;
  box.setAttribute("role", "slider");
  box.setAttribute("aria-label", `${panel.plot.getAttribute("aria-label")}: use the arrow keys`);
  panel.plot.setAttribute("aria-hidden", "true");
  panel.plot.removeAttribute("role");
  for (const [name, value] of Object.entries({ valuemin: 0, valuemax: 0, valuenow: 0, valuetext: "not read yet" })) box.setAttribute(`aria-${name}`, value);
}
