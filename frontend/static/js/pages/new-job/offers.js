// Inserts an offered parameter of the environment into its field, in the field's syntax, with its value selected for
// typing over.

export function wireOffers(form) {
  form.addEventListener("click", (event) => {
    const offer = event.target.closest("[data-offer]");
    if (!offer) return;
    const field = offer.closest(".field").querySelector("textarea");
    const before = field.value.trimEnd();
    field.value = `${before}${before && "\n"}${offer.dataset.offer}`;
    field.focus();
    field.setSelectionRange(field.value.lastIndexOf("= ") + 2, field.value.length);
    field.dispatchEvent(new Event("input", { bubbles: true }));
  });
}
