(() => {
  const data = JSON.parse(document.getElementById("decisions").textContent);
  const edits = data.files.flatMap((file) => file.edits);
  const bar = document.createElement("p");
  const said = document.createElement("span");
  const shown = [];
  const count = () => {
    said.textContent = `${edits.filter((edit) => edit.accept).length} of ${edits.length} changes are taken. `;
  };
  const button = (text, click) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.addEventListener("click", click);
    return made;
  };
  edits.forEach((edit, index) => {
    const first = document.getElementById(`e${index + 1}`);
    const next = first.nextSibling;
    const marked = [first];
    if (first.tagName === "DEL" && edit.corr && next && next.tagName === "INS") marked.push(next);
    const toggle = button("", () => set(!edit.accept));
    toggle.className = "decide";
    const set = (accept) => {
      edit.accept = accept;
      toggle.textContent = accept ? "✓" : "✗";
      toggle.setAttribute("aria-pressed", String(accept));
      toggle.setAttribute("aria-label", `change ${index + 1} is ${accept ? "taken" : "left out"}`);
      marked.forEach((each) => each.classList.toggle("left", !accept));
      count();
    };
    shown.push(set);
    first.before(toggle);
    set(edit.accept);
  });
  bar.append(
    said,
    button("Take all", () => shown.forEach((set) => set(true))),
    button("Leave all", () => shown.forEach((set) => set(false))),
    button("Save decisions", () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([JSON.stringify(data, null, 1)], { type: "application/json" }));
      link.download = "decisions.json";
      link.click();
      URL.revokeObjectURL(link.href);
    }),
  );
  bar.className = "decisions";
  document.querySelector("main").before(bar);
})();
