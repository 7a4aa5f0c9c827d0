// Errors of security keys, which allauth's scripts only log.
import { showError } from "./toasts.js";

const MEANINGS = {
  InvalidStateError: "This security key is registered already.",
  NotAllowedError: "The security key did not answer: the request was cancelled or timed out, or this key is not registered here. Try again.",
  SecurityError: "Security keys work only where the site is opened by its name, over HTTPS or as localhost.",
};

export function showKeyErrors() {
  document.addEventListener("allauth.error", (event) => {
    event.preventDefault();
    const { name } = event.detail.exception ?? {};
    showError(MEANINGS[name] ?? "The security key could not be used. Try again, or use another method.");
  });
}
