// The new-job form: the same as curl, kept true while typing. Judging is the server's; this page never second-guesses.
import { curlOf } from "../lib/curl.js";

const form = document.querySelector("[data-new-job]");
const code = document.getElementById("curl");

document.getElementById("summary")?.focus();
if (form) {
  const show = () => { code.textContent = curlOf(form); };
  form.addEventListener("input", show);
  show();
  form.addEventListener("submit", (event) => {
    if (event.submitter?.name === "look") return;
    // The token makes a second sending harmless; this only says that it is on its way.
    const button = form.querySelector("button.primary");
    setTimeout(() => { button.disabled = true; button.textContent = "Submitting…"; });
  });
  addEventListener("pageshow", (event) => { if (event.persisted) { const button = form.querySelector("button.primary"); button.disabled = false; button.textContent = "Submit job"; } });
}
