// Finds a folded setting by its title, its name in the spec, and its help.

export function wireFinding(form) {
  const box = form.querySelector("[data-find]");
  const found = document.getElementById("found");
  const sections = [...form.querySelectorAll(".more .section")];
  box.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); });
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let num = 0;
    for (const section of sections) {
      const fields = [...section.querySelectorAll(".field")];
      for (const field of fields) {
        const text = `${field.textContent} ${field.querySelector("[data-kind]").name}`.toLowerCase();
        field.hidden = !words.every((word) => text.includes(word));
      }
      const left = fields.filter((field) => !field.hidden).length;
      section.hidden = left === 0;
      num += left;
    }
    found.textContent = words.length ? `${num} ${num === 1 ? "setting" : "settings"}` : "";
  });
}
