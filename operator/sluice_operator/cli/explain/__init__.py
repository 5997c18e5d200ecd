"""`sluice explain`: what a service's engines are sized for, why, and which arrangement pays."""
