"""EnginePool: plan and status."""
