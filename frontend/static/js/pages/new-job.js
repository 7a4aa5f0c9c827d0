// The new-job form, validated by the server while the user types: errors at their fields, settings without effect, the
// outlook, and the calls as code. The page itself has no rules.
import { fetchMarkup, replaceContent } from "../lib/part.js";
import { hasChanges, showJudged } from "./new-job/fields.js";
import { wireFinding } from "./new-job/find.js";
import { wireOffers } from "./new-job/offers.js";

const AFTER_TYPING_MS = 350;
const AFTER_SILENCE_MS = 5_000;

const form = document.querySelector("[data-new-job]");

document.getElementById("summary")?.focus();
if (form) {
  wireFinding(form);
  wireOffers(form);
  let timer = 0, asking = null;
  form.addEventListener("input", (event) => {
    if (event.target.matches("[data-find]")) return;
    judgeIn(AFTER_TYPING_MS);
  });
  if (hasChanges(form)) judge(); // typed before this script ran, or restored by the browser

  function judgeIn(delay) {
    clearTimeout(timer);
    timer = setTimeout(judge, delay);
  }

  async function judge() {
    asking?.abort();
    const mine = asking = new AbortController();
    const typed = new URLSearchParams(new FormData(form));
    typed.set("part", "judged");
    try {
      const next = await fetchMarkup(form.action, mine.signal, typed);
      showJudged(form, next.querySelector("[data-fields]"));
      replaceContent(form.querySelector("[data-outlook]"), next.querySelector("[data-outlook]"));
      replaceContent(form.querySelector("[data-params]"), next.querySelector("[data-params]"));
      showCalls(document.querySelector("[data-calls]"), next.querySelector("[data-calls]"));
    } catch (failure) {
      if (mine === asking && !(failure.status < 500)) judgeIn(AFTER_SILENCE_MS); // a refusal would be repeated
    }
  }

  function showCalls(now, next) {
    const chosen = now.querySelector("input:checked")?.id;
    if (!replaceContent(now, next)) return;
    const again = chosen && document.getElementById(chosen);
    if (again) again.checked = true;
  }
  form.addEventListener("submit", (event) => {
    if (event.submitter?.name === "preview") return;
    // The token makes a second submission harmless; this only shows that one is pending.
    const button = form.querySelector("button.primary");
    setTimeout(() => { button.disabled = true; button.textContent = "Submitting…"; });
  });
  addEventListener("pageshow", (event) => { if (event.persisted) { const button = form.querySelector("button.primary"); button.disabled = false; button.textContent = "Submit job"; } });
}
