"""Train agents in Gymnasium environments by PPO, with layers with skips as their memory."""
