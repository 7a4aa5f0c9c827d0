// How numbers and times look: the same rules as in backend/pages/templatetags/laminar.py.
export const NOTHING = "–";
const grouped = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const signed = (value, text) => (value < 0 ? "−" : "") + text;
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export function number(value) {
  if (!isNumber(value)) return NOTHING;
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-3 || size >= 1e7) return signed(value, size.toExponential(2).replace(/e([+-])(\d)$/, "e$10$2"));
  if (Number.isInteger(size) || size >= 100) return signed(value, grouped.format(size));
  return signed(value, size.toFixed(size >= 10 ? 1 : size >= 0.1 ? 2 : 4));
}

export function reward(value) {
  if (!isNumber(value)) return NOTHING;
  return Math.abs(value) < 100 ? value.toFixed(2).replace("-", "−") : number(value);
}

export const change = (value) => (isNumber(value) ? (value >= 0 ? "+" : "−") + reward(Math.abs(value)) : "");

export function span(seconds) {
  if (!isNumber(seconds)) return NOTHING;
  const s = Math.max(0, Math.round(seconds));
  const two = (n) => String(n).padStart(2, "0");
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${two(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${two(Math.floor((s % 3600) / 60))} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export function ago(at, now = Date.now()) {
  const seconds = (now - at) / 1000;
  if (seconds < 5) return "just now";
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit} ago`;
  }
  return `${Math.floor(seconds)} s ago`;
}
