// Before anything is drawn, so that nobody in the dark sees a white flash.
try {
  const theme = localStorage.getItem("gptoss-jit.theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // A browser may keep nothing: the system's theme is used.
}
