export { Scrollbars as default, Scrollbars } from 'scrollbars-package';
