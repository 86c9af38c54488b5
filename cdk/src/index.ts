export * from './leasehold';
