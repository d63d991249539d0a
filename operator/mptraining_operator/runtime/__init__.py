"""One replica of an operator, which knows no training: streams, controllers, leader election, Events, health."""
