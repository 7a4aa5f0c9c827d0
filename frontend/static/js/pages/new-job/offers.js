// A parameter of the environment that is offered beside its field is put there as it would be typed, with its value
// selected, to be typed over.

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
