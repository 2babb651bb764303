"use strict";
for (const button of document.querySelectorAll("[data-copy]")) {
  const source = document.getElementById(button.dataset.copy);
  const status = document.querySelector("[data-copied]");
  button.hidden = false;
  button.addEventListener("click", async () => {
    // Over plain http there is no clipboard, but a selection.
    getSelection().selectAllChildren(source);
    let copied = false;
    try {
      await navigator.clipboard.writeText(source.textContent);
      copied = true;
    } catch {
      copied = document.execCommand("copy");
    }
    status.textContent = copied ? "Copied." : "Selected: copy it with Ctrl+C.";
  });
}
