"""kvalet: an asyncio runtime between agent code and model backends."""
