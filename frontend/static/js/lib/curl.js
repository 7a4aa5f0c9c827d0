// The API call that a filled-in form stands for: what was left at its default is left out.
const quoted = (text) => `'${text.replaceAll("'", `'"'"'`)}'`;

function settingsOf(text) {
  const lines = text.split("\n").filter((line) => line.trim());
  return Object.fromEntries(lines.map((line) => {
    const [key, ...rest] = line.split("=");
    const value = rest.join("=").trim();
    try { const read = JSON.parse(value); return [key.trim(), typeof read === "object" ? value : read]; } catch { return [key.trim(), value]; }
  }));
}

function valueOf(input) {
  const text = input.value.trim();
  switch (input.dataset.kind) {
    case "words": return text.split(",").map((word) => word.trim()).filter(Boolean);
    case "settings": return settingsOf(input.value);
    case "whole": case "number": {
      if (!text) return null;
      const value = Number(text.replace(/[,_ ]/g, "").replace("−", "-"));
      return Number.isFinite(value) ? value : text;
    }
    case "flag": return text === "yes";
    case "choice": return text || null;
    case "code": return input.value;
    default: return text;
  }
}

export function specOf(form) {
  const spec = {};
  for (const input of form.querySelectorAll("[data-kind]")) {
    const value = valueOf(input);
    if ("preset" in input.dataset) { if (value === null) continue; } else if (JSON.stringify(value) === JSON.stringify(JSON.parse(input.dataset.default))) continue;
    const way = input.name.split(".");
    const last = way.pop();
    way.reduce((here, step) => (here[step] ??= {}), spec)[last] = value;
  }
  return spec;
}

export function curlOf(form) {
  const field = form.elements.namedItem("target");
  const { project, pool } = (field.selectedOptions?.[0] ?? field).dataset;
  const begin = form.elements.namedItem("start_from");
  const start = begin?.checked ? { start_from: begin.value } : {};
  const body = JSON.stringify({ project, pool, ...start, spec: specOf(form) }, null, 2);
  return [
    `curl -s -X POST ${quoted(form.dataset.apiUrl)}`,
    '-H "Authorization: Bearer $LAMINAR_API_KEY"',
    '-H "Idempotency-Key: $(uuidgen)"',
    "-H 'Content-Type: application/json'",
    `-d ${quoted(body)}`,
  ].join(" \\\n  ");
}
