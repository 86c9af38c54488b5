export * from "./leasehold";
export * from "./parameters";
