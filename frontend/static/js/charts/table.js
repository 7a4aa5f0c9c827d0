// A chart's data as a table: for screen readers, keyboard, and copying. Limited to the last points.
import { number } from "../lib/format.js";

const MOST_ROWS = 500;

export function showTable({ title, words, lines }) {
  const dialog = document.createElement("dialog"), close = document.createElement("form");
  const heading = Object.assign(document.createElement("h2"), { id: "table-title", textContent: title });
  dialog.className = "chart-table";
  dialog.setAttribute("aria-labelledby", heading.id);
  const rows = rowsOf(lines);
  const said = Object.assign(document.createElement("p"), { className: "quiet small", textContent: rows.length > MOST_ROWS ? `${words}; the last ${MOST_ROWS} of ${number(rows.length)} points` : words });
  const scrolled = Object.assign(document.createElement("div"), { className: "scrolled", tabIndex: 0 });
  scrolled.setAttribute("role", "group");
  scrolled.setAttribute("aria-labelledby", heading.id);
  scrolled.append(tableOf(rows.slice(-MOST_ROWS)));
  close.method = "dialog";
  close.className = "dialog-end";
  close.append(Object.assign(document.createElement("button"), { className: "button", textContent: "Close" }));
  dialog.append(heading, said, scrolled, close);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

// By step; for a range, its last step.
export function rowsOf(lines) {
  const rows = lines.flatMap(({ label, places }) => places.map(({ from, to, count, mean, low, high }) => ({ from, to, label, count, mean, low, high })));
  return rows.sort((one, other) => one.to - other.to);
}

function tableOf(rows) {
  const table = document.createElement("table"), isBanded = rows.some(({ count }) => count > 1);
  table.className = "plain";
  const names = ["step", "series", "value", ...(isBanded ? ["lowest", "highest"] : [])];
  table.createTHead().insertRow().append(...names.map((name) => Object.assign(document.createElement("th"), { scope: "col", textContent: name })));
  const body = table.createTBody();
  for (const { from, to, label, mean, low, high } of rows) {
    const row = body.insertRow();
    row.append(Object.assign(document.createElement("th"), { scope: "row", textContent: from === to ? number(to) : `${number(from)} to ${number(to)}` }));
    for (const text of [label, number(mean), ...(isBanded ? [number(low), number(high)] : [])]) row.insertCell().textContent = text;
  }
  return table;
}
