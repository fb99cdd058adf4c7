// Before the page is painted: the theme that was chosen here last.
"use strict";
{
  const theme = localStorage.getItem("popmq-theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
}
