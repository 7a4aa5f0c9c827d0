// Saves a chart: as a picture, drawn from Plotly's SVG (the page's policy forbids blob:), or as numbers.
import { bucketsOf } from "../lib/series.js";
import { fetchSeries } from "./detail.js";

const SCALE = 2, HEAD_PX = 34, SIDE_PX = 14;
const MOST_POINTS = 2_000; // per series, the server's limit

export async function savePng(plot, { title, words, palette, file }) {
  const { clientWidth: width, clientHeight: height } = plot;
  const drawing = await loaded(await window.Plotly.toImage(plot, { format: "svg", width, height }));
  const canvas = Object.assign(document.createElement("canvas"), { width: SCALE * (width + SIDE_PX), height: SCALE * (height + HEAD_PX) });
  const paper = canvas.getContext("2d");
  paper.scale(SCALE, SCALE);
  paper.fillStyle = palette.surface;
  paper.fillRect(0, 0, canvas.width, canvas.height);
  paper.fillStyle = palette.ink;
  paper.font = `600 13px ${palette.font}`;
  paper.fillText(title, SIDE_PX, 20);
  const left = SIDE_PX + paper.measureText(title).width + 10;
  paper.fillStyle = palette.text;
  paper.font = `11px ${palette.font}`;
  paper.fillText(words, left, 20, width - left);
  paper.drawImage(drawing, 0, HEAD_PX, width, height);
  download(canvas.toDataURL("image/png"), `${file}.png`);
}

export async function saveCsv(address, names, { from, to }, file) {
  const answer = await fetchSeries(address, { names, from, to, points: MOST_POINTS });
  download(`data:text/csv;charset=utf-8,${encodeURIComponent(csvOf(names, answer))}`, `${file}.csv`);
}

// One line per bucket of each series; for a bucket of one step the three values are the same.
export function csvOf(names, { series, bands, counts }) {
  const lines = ["series,first_step,last_step,points,mean,lowest,highest"];
  for (const name of names) {
    for (const { from, to, count, mean, low, high } of bucketsOf(series[name] ?? [], bands[name], counts[name])) {
      lines.push([quoted(name), from, to, count, mean, low, high].join(","));
    }
  }
  return `${lines.join("\n")}\n`;
}

// Names come from user code: prevents spreadsheet programs from reading one as a formula.
function quoted(name) {
  const text = /^[=+\-@\t\r]/.test(name) ? `'${name}` : name;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function loaded(address) {
  return new Promise((done, failed) => {
    const image = new Image();
    image.onload = () => done(image);
    image.onerror = () => failed(new Error("the drawing could not be read"));
    image.src = address;
  });
}

function download(href, name) {
  const link = Object.assign(document.createElement("a"), { href, download: name });
  document.body.append(link);
  link.click();
  link.remove();
}
