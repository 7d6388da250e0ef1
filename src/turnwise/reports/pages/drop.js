// Pass the files that are chosen or dropped to `use`.
function takeFiles(drop, input, use) {
  input.addEventListener("change", () => use(input.files[0]));
  drop.addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    use(event.dataTransfer.files[0]);
  });
}
