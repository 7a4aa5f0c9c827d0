// Calls `wake` when the page is back: online again, in front again, or restored by the back button.
export function whenBack(wake) {
  const inFront = () => { if (!document.hidden) wake(); };
  addEventListener("online", inFront);
  document.addEventListener("visibilitychange", inFront);
  addEventListener("pageshow", (event) => { if (event.persisted) inFront(); });
}
