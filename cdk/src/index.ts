export * from "./leasehold";
