// Selection in the job list: selected jobs stay selected when the list refreshes, and the bulk actions show their number.
export function wireChoosing(list) {
  const boxes = () => [...list.querySelectorAll('[data-choosing] input[name="job"]')];
  let chosen = new Set();

  function show() {
    const form = list.querySelector("[data-choosing]");
    if (!form) return;
    const num = chosen.size, all = form.querySelector("[data-choose-all]");
    all.checked = num > 0 && num === boxes().length;
    all.indeterminate = num > 0 && !all.checked;
    form.querySelector("[data-num-chosen]").textContent = num ? `${num} selected:` : "Selected:";
    for (const button of form.querySelectorAll('button[name="act"]')) button.disabled = num === 0;
  }

  list.addEventListener("change", (event) => {
    if (event.target.matches("[data-choose-all]")) for (const box of boxes()) box.checked = event.target.checked;
    else if (event.target.name !== "job") return;
    chosen = new Set(boxes().filter((box) => box.checked).map((box) => box.value));
    show();
  });

  // After a refresh, and after returning to the page: the browser may have restored checkboxes.
  function keep() {
    for (const box of boxes()) if (chosen.has(box.value)) box.checked = true;
    chosen = new Set(boxes().filter((box) => box.checked).map((box) => box.value));
    show();
  }
  addEventListener("pageshow", keep);
  keep();
  return keep;
}
