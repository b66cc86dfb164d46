declare module "*.py?raw" {
  const text: string;
  export default text;
}
declare module "*.css";
