// The buttons of each chart's save menu. Errors are shown in the menu.
import { saveCsv, savePng } from "../charts/save.js";
import { showTable } from "../charts/table.js";

const titleOf = (figure) => figure.querySelector("h2").firstChild.textContent.trim();

// `panelOf(plot)`: the panel drawn in it.
export function wireSaving(room, panelOf) {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-table]");
    if (!button) return;
    const figure = button.closest("[data-chart]"), [from, to] = room.view.range(room.store.extent());
    button.closest("[popover]").hidePopover();
    showTable({ title: titleOf(figure), words: `steps ${from} to ${to}`, lines: panelOf(figure.querySelector("[data-plot]")).shown });
  });
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-save]");
    if (!button) return;
    const figure = button.closest("[data-chart]"), plot = figure.querySelector("[data-plot]");
    const title = titleOf(figure);
    const range = room.view.range(room.store.extent());
    const file = `${room.name} ${title}`.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 80);
    const said = button.closest("[popover]").querySelector("[role=status]");
    said.textContent = "";
    try {
      if (button.dataset.save === "csv") await saveCsv(room.address, JSON.parse(plot.dataset.traces).map(({ key }) => key), { from: range[0], to: range[1] }, file);
      else await savePng(plot, { title, words: `${room.name}, steps ${range[0]} to ${range[1]}`, palette: room.palette, file });
      button.closest("[popover]").hidePopover();
    } catch {
      said.textContent = plot.data ? "Could not save the chart. Try again." : "Nothing to save yet.";
    }
  });
}
