// The list at the side: beside the conversation, or on a telephone above it.

const $ = id => document.getElementById(id);

export function listed(isOpen) {
  const isPhone = matchMedia("(max-width: 48rem)").matches;
  if (isPhone) document.body.classList.toggle("listed", isOpen);
  $("shade").hidden = !(isPhone && isOpen);
  $("column").inert = isPhone && isOpen;
  const isShown = isPhone ? isOpen : !document.body.classList.contains("narrowed");
  $("menu").setAttribute("aria-expanded", String(isShown));
}

$("menu").addEventListener("click", () => {
  const isPhone = matchMedia("(max-width: 48rem)").matches;
  if (!isPhone) document.body.classList.toggle("narrowed");
  listed(isPhone);
  if (isPhone) $("new").focus();
});
for (const id of ["shade", "closed"]) {
  $(id).addEventListener("click", () => {
    listed(false);
    $("menu").focus();
  });
}
matchMedia("(max-width: 48rem)").addEventListener("change", () => listed(false));
